"""Official raw files to columnar files: one module for each data set.

    python -m data_prep --list                          where the raw files come from, their terms, sizes and checksums
    python -m data_prep criteo-kaggle RAW OUT           prepare; a run that was stopped goes on
    python -m data_prep criteo-kaggle RAW --twin        write a synthetic twin in the raw format instead

OUT then holds partitions (`data_prep.partitions`), manifest.json with the schema, counts and digests, and rejects.jsonl with
every row that was set aside. `lib.data.prepared` reads them.
"""
