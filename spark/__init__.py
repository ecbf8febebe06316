"""The PySpark data source: topics as DataFrames."""
