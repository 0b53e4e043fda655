"""Detects text after a JSON value, with Spark column expressions.

Spark's JSON functions stop at the end of the first value and ignore the rest. Most texts need only one check.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import Column


def in_brackets(text: Column) -> Column:
    """Returns the text as the only element of a JSON array, so that text after a value makes it invalid."""
    from pyspark.sql import functions as sf

    return sf.concat(sf.lit("["), text, sf.lit("]"))


def closes_its_brackets(text: Column) -> Column:
    """Returns whether a text, wrapped in brackets, closes them itself and continues. In braces it cannot do the
    same."""
    from pyspark.sql import functions as sf

    in_braces = sf.json_object_keys(sf.concat(sf.lit('{"":'), text, sf.lit("}")))
    return text.contains("]") & in_braces.isNull()


def is_more_than_an_object(text: Column) -> Column:
    """Returns whether a text that begins with an object continues after it.

    A text whose only closing brace is at its end has nothing after the object.
    """
    from pyspark.sql import functions as sf

    values = sf.coalesce(sf.json_array_length(in_brackets(text)), sf.lit(0))
    return ~text.rlike(r"\}\s*$") | (text.rlike(r"(?s)\}.*\}") & ((values != 1) | closes_its_brackets(text)))
