"""Official raw files to columnar files: one module for each data set; and traces of clusters to slowdowns (`data_prep.traces`).

    python -m data_prep --list                          where the raw files come from, their terms, sizes and checksums
    python -m data_prep criteo-kaggle RAW OUT           prepare; a run that was stopped goes on
    python -m data_prep avazu MINE.csv OUT --test LATER.csv     a file of one's own, and one to be judged by
    python -m data_prep triples MINE.tsv OUT            any knowledge graph
    python -m data_prep criteo-kaggle RAW --twin        write a synthetic twin in the raw format instead
    python -m data_prep trace FILE                      fit a slowdown to a trace

OUT then holds partitions (`data_prep.partitions`), manifest.json with the schema, counts and digests, and rejects.jsonl with
every row that was set aside. `lib.tasks.prepared_datasets` reads them. A preparation that was interrupted goes on when it is
asked for again; one that was refused leaves nothing that stands in the way of another.
"""
