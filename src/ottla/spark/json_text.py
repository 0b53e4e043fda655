"""What comes after a JSON value in a text, as columns of Spark's: its functions stop at the end of the first value,
whatever comes then. Most texts are not looked at twice."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import Column


def in_brackets(text: Column) -> Column:
    from pyspark.sql import functions as sf

    return sf.concat(sf.lit("["), text, sf.lit("]"))


def closes_its_brackets(text: Column) -> Column:
    """A text that stands in brackets may end them itself, and go on. In braces it cannot do the same."""
    from pyspark.sql import functions as sf

    in_braces = sf.json_object_keys(sf.concat(sf.lit('{"":'), text, sf.lit("}")))
    return text.contains("]") & in_braces.isNull()


def is_more_than_an_object(text: Column) -> Column:
    """Of a text that begins with an object. One with a single closing brace, at its end, has nothing after it."""
    from pyspark.sql import functions as sf

    values = sf.coalesce(sf.json_array_length(in_brackets(text)), sf.lit(0))
    return ~text.rlike(r"\}\s*$") | (text.rlike(r"(?s)\}.*\}") & ((values != 1) | closes_its_brackets(text)))
