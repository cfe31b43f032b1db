"""The papers' pairs of data and model: sizes, ceilings beside results, and that each model comes near its ceiling."""

import dataclasses
import pickle

import numpy as np
import pytest

import lib
from lib import VirtualCluster, workloads
from lib.errors import UnknownName, UnknownOption
from lib.store.optim import Adam, Momentum
from lib.tasks.workload import dense_parameters, evaluate
from lib.workloads import PROFILES
from tests.tasks.gradients import zero_rows
from tests.toys import diagonal

NAMED = [*workloads.named_entries()]
CEILINGS = {"auc_ceiling", "mrr_truth", "accuracy_ceiling", "em_ceiling"}
QUICK = {"samples": 256, "batch_size": 32}


@pytest.mark.parametrize("name", NAMED)
def test_every_profile_is_a_workload_and_a_larger_one_is_larger(name):
    smoke, laptop, full = (workloads.get(name, profile=profile) for profile in PROFILES)
    assert smoke == workloads.get(name) and smoke.name_in_errors == f"workload {name!r}"
    assert smoke.samples < laptop.samples < full.samples and smoke.name == laptop.name == full.name == name


@pytest.mark.parametrize("profile", ["laptop", "full"])
def test_what_smoke_says_holds_where_a_profile_says_nothing_else(profile):
    dlrm, syn = workloads.get("criteo-dlrm", profile), workloads.get("criteo-syn", profile)
    assert (dlrm.network, dlrm.fields, dlrm.days) == ("dlrm", 26, 8) and dlrm.vocabulary > 1_000
    assert (syn.network, syn.fields, syn.days, syn.copies) == ("ffnn", 26, 5, 1_878_005)


def test_two_of_a_kind_are_two_workloads_wherever_they_go():
    one, other = workloads.get("fb15k-237-distmult", relations=12), workloads.get("kg-synthetic")
    assert one != other and dataclasses.replace(one, name="kg-synthetic") == other
    assert pickle.loads(pickle.dumps(dataclasses.replace(one, dim=4))).name == "fb15k-237-distmult"
    with pytest.raises(UnknownOption, match="this run has no option 'name'"):
        lib.train("kg-synthetic", "sequential", "virtual", name="fb15k-237-distmult")


@pytest.mark.parametrize("name", NAMED)
def test_an_option_goes_before_the_profile(name):
    assert workloads.get(name, profile="full", samples=7).samples == 7
    with pytest.raises(UnknownName, match="unknown profile 'huge'; valid: full, laptop, smoke"):
        workloads.get(name, profile="huge")


def test_the_experiments_of_the_five_papers_are_there():
    clicks = "criteo-deepfm alimama-dien private-youtubednn criteo-dlrm taobao-ffnn avazu-ffnn criteo-ffnn kwai-ffnn criteo-syn"
    graphs = "freebase86m-distmult freebase86m-graphsage fb15k-237-distmult"
    others = "cifar10-wrn cifar100-wrn imagenet-wrn50-2 squad-bert"
    assert {*clicks.split(), *graphs.split(), *others.split()} == set(NAMED)


def test_the_largest_sizes_are_the_papers():
    persia = workloads.get("criteo-ffnn", profile="full")
    assert persia.hidden == (4096, 2048, 1024, 512, 256)
    assert dense_parameters(persia) == pytest.approx(12e6, rel=0.1)
    assert dense_parameters(workloads.get("kwai-ffnn", profile="full")) == pytest.approx(34e6, rel=0.02)
    syn = workloads.get("criteo-syn", profile="full")
    assert syn.fields * syn.vocabulary * syn.copies * syn.dim == pytest.approx(6.25e12, rel=1e-6)
    ids = workloads.get("criteo-syn").batch(0, 0, size=512).ids["feature"]
    assert len(ids) > 0.999 * 512 * 26  # hardly any id comes twice
    oac = workloads.get("freebase86m-graphsage", profile="full")
    assert (oac.dim, oac.neighbours, oac.batch_size) == (50, 10, 50_000)
    assert workloads.get("freebase86m-distmult", profile="full").batch_size == 500_000
    wrn = workloads.get("cifar10-wrn", profile="full")
    assert (wrn.lr_milestones, wrn.lr_gamma, wrn.batch_size) == ((0.3, 0.6, 0.8), 0.2, 256)
    assert (wrn.depth, wrn.width) == (26, 10) and workloads.get("imagenet-wrn50-2", profile="full").network == "wrn50"


@pytest.mark.parametrize("name", NAMED)
def test_an_untrained_model_stands_far_below_the_ceiling_beside_it(name):
    least = {"evaluation_samples": 400, "entities": 500, "triples": 5_000}
    small = {option: least[option] for option in least if option in workloads.options(name)}
    workload = workloads.get(name, **QUICK, **small)
    result = evaluate(workload, workload.model(0), zero_rows(workload, 0), 0)
    (ceiling,) = CEILINGS & result.keys()
    metric = "mrr" if ceiling == "mrr_truth" else ceiling.removesuffix("_ceiling")
    assert result[metric] < result[ceiling] - 0.1 and result[ceiling] <= 1


FEW, SHOP, IMAGES = {"vocabulary": 50}, {"topics": 8, "batch_size": 512}, {"samples": 12_000, "noise": 3.0}
NEAR = {
    "criteo-ffnn": ({**FEW, "fields": 5, "hidden": (32,), "batch_size": 1024, "row_optimizer": Adam(lr=0.003)}, 0.015),
    "alimama-dien": (
        {**FEW, "fields": 4, **SHOP, "per_topic": 10, "length": 6, "dense_optimizer": Adam(lr=0.003)},
        0.025,
    ),
    "private-youtubednn": ({**SHOP, "per_topic": 20, "drift": 0.0, "row_optimizer": Adam(lr=0.01)}, 0.025),
    "cifar10-wrn": ({**IMAGES, "classes": 4, "side": 8, "dense_optimizer": Momentum(lr=0.05)}, 0.06),
    "squad-bert": ({}, 0.05),
}
"""Options, and how near."""


@pytest.mark.parametrize("name", NEAR)
def test_models_come_near_what_can_be_known(name):
    (options, margin), metric = NEAR[name], {"cifar10-wrn": "accuracy", "squad-bert": "em"}.get(name, "auc")
    samples = {} if "samples" in options or name == "squad-bert" else {"samples": 200_000}
    run = lib.train(name, "sync", VirtualCluster(workers=1), save=False, **options, **samples)
    ceiling = run.summary[f"{metric}_ceiling"]
    assert ceiling - margin < run.summary[metric] <= ceiling + 0.01


def of_one_worker(name, batches, batch_size, **options):
    size = {"samples": batches * batch_size, "batch_size": batch_size}
    return lib.train(name, "sync", VirtualCluster(workers=1), save=False, **size, **options).summary


@pytest.mark.parametrize("model", ["deepfm", "dlrm"])
def test_click_models_come_near_the_planted_ceiling(model):
    found = of_one_worker("ctr-synthetic", 49, 4096, model=model)
    assert found["auc"] > 0.78 and found["auc_ceiling"] - 0.035 < found["expected_auc"] < found["auc_ceiling"]
    assert found["calibration"] == pytest.approx(1, abs=0.1) and found["ne"] < 0.85


@pytest.mark.parametrize("model, least", [("distmult", 0.2), ("graphsage", 0)])
def test_models_of_graphs_rank_far_above_chance(model, least):
    found = of_one_worker("kg-synthetic", 600, 256, model=model)
    assert found["mrr"] > 20 * np.log(2000) / 2000 and found["mrr"] >= found["mrr_raw"] and found["hits_10"] > least
    assert found["hits_1"] <= found["hits_3"] <= found["hits_10"] and 0.2 < found["mrr_truth"] < 0.5


def test_ranking_against_a_sample_is_kinder_and_leaves_out_other_ends():
    options = {"entities": 200, "relations": 4, "triples": 3_000, "evaluation_triples": 100}
    rng = np.random.default_rng(0)
    whole = workloads.get("kg-synthetic", **options)
    rows = rng.normal(size=(200, whole.dim)).astype(np.float32)
    few = dataclasses.replace(whole, evaluation_candidates=20)
    ids = few.evaluation_ids(0)["entity"]
    assert len(ids) > 20  # the triples' own ends beside those that were drawn
    result = evaluate(few, few.model(0), {"entity": rows[ids]}, 0)
    assert result["mrr"] > evaluate(whole, whole.model(0), {"entity": rows}, 0)["mrr"]
    # At random, the mean of 1 / rank among some 20 candidates is about H(20) / 20.
    assert result["mrr_raw"] == pytest.approx(np.mean(1 / np.arange(1, 20)), abs=0.06)


MODELS = ["alimama-dien", "private-youtubednn", "freebase86m-graphsage", "taobao-ffnn"]


@pytest.mark.parametrize("name, rule", diagonal(MODELS, ["gba", "ds-sync", "s-easgd", "oac"]))
def test_new_models_train_under_every_family(name, rule):
    there = VirtualCluster(workers=None if rule == "oac" else 2)
    run, again = (lib.train(name, rule, there, save=False, **QUICK) for _ in range(2))
    assert run.summary["issued"] == 8 and run.digest == again.digest


@pytest.mark.parametrize("name", ["cifar10-wrn", "squad-bert"])
def test_dense_models_train_among_threads(name):
    run = lib.train(name, "ds-sync", "local", workers=2, save=False, **QUICK)
    assert run.summary["samples"] == 256 and np.isfinite(run.summary["train_loss"])


def test_the_command_line_takes_a_profile_and_a_folder(capsys, tmp_path):
    from lib.command_line import main

    command = ["train", "criteo-deepfm", "gba", "virtual", "--samples", "2048", "-o", "workers=2"]
    assert main([*command, "--profile", "laptop"]) == 0
    assert "auc_ceiling" in capsys.readouterr().out
    assert main([*command, "--data", str(tmp_path)]) == 2
    assert "python -m data_prep" in capsys.readouterr().err
    assert main([*command, "-o", "profile=full"]) == 2
    assert "profile has a flag of its own: --profile" in capsys.readouterr().err
