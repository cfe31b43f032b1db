"""The records of fitted constants say what the code says."""

from importlib import import_module

from reports import claims


def test_a_record_has_the_constants_value():
    records = {record.constant: record.value for record in claims.calibrations()}
    known = {name: value for name, value in records.items() if name.startswith("notebooks.")}
    assert len(known) == 15
    for name, value in known.items():
        module, _, constant = name.rpartition(".")
        assert getattr(import_module(module), constant) == value, name


def test_what_a_constant_decides_is_judged_by_no_claim():
    """Under GBA's records two figures are put in: Sync over Async on Criteo, and so over GBA, which is fitted to Async there, and
    with as many workers on Alimama."""
    records = claims.calibrations()
    covered = {
        (claim.id, each.case)
        for claim in claims.load().values()
        for each in claim.comparisons
        if any(claim.notebook in record.notebooks and record.covers(each) for record in records)
    }
    speeds = {("gba.t52-sync", "criteo"), ("gba.t52-sync", "alimama"), ("gba.t52-async", "criteo")}
    fitted = {("ds.f4-speed-up", "CIFAR-10, 16"), ("ds.f4-more", "CIFAR-10")}
    assert covered == speeds | fitted
