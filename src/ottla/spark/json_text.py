"""Whether a text is JSON, as a column of Spark's: it is looked at once, and nothing is built of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import Column


def in_brackets(text: Column) -> Column:
    from pyspark.sql import functions as sf

    return sf.concat(sf.lit("["), text, sf.lit("]"))


def is_not_one_value(text: Column) -> Column:
    """Nothing, or more than one value, or something after it.

    Spark's functions stop at the end of the first value, whatever comes then: so the text is looked at as what stands
    in brackets, and where it may have closed them itself, in braces too.
    """
    from pyspark.sql import functions as sf

    values = sf.coalesce(sf.json_array_length(in_brackets(text)), sf.lit(0))
    in_braces = sf.json_object_keys(sf.concat(sf.lit('{"":'), text, sf.lit("}")))
    return (values != 1) | (text.contains("]") & in_braces.isNull())
