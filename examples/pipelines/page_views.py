"""Clicks to page views: a pipeline of three functions.

ottla topics create clicks
echo '{"user": "ann", "page": "/", "ts": "2026-11-16T12:00:00Z"}' | ottla produce clicks
ottla pipeline run examples/pipelines/page_views.py --checkpoints checkpoints
ottla consume page-views --from-beginning
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.spark.pipeline_file import Pipeline

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

pipeline = Pipeline()
pipeline.topic("clicks", schema="user STRING, page STRING, ts TIMESTAMP", watermark="1 minute")


@pipeline.stream(reads="clicks", writes="page-clicks", key="page")
def page_clicks(clicks: DataFrame) -> DataFrame:
    """Clicks without the query string, so that /a?x=1 and /a are one page."""
    return clicks.selectExpr("user", "split(page, '[?]')[0] AS page", "ts")


@pipeline.table(reads="page-clicks", writes="page-views")
def page_views(clicks: DataFrame) -> DataFrame:
    """The number of views of each page, updated continuously."""
    return clicks.groupBy("page").count()


@pipeline.stream(reads="page-clicks", writes="minutes")
def minutes(clicks: DataFrame) -> DataFrame:
    """Views per minute, emitted once when no more can arrive."""
    from pyspark.sql import functions as sf

    counted = clicks.groupBy(sf.window("ts", "1 minute")).agg(sf.count("*").alias("views"))
    return counted.selectExpr("window.start AS minute", "views")
