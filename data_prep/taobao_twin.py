"""A synthetic twin of the Taobao data: users with favourite categories, which their behaviours show and their clicks follow.

A sample's logit is a bias, a weight of its ad, one of its user's age, and `PULL` times the share of the ad's category among the
user's last `SEEN` behaviours that are strictly earlier. A reader that let a later behaviour through would see other shares.
"""

from pathlib import Path
from typing import Any

import numpy as np

from data_prep import truth
from lib.streams import stream
from lib.tasks.sampling import alias_table, pick

SEEN = 10
PULL = 4.0

_FIRST = 1_494_000_000
_DAY = 86_400
_DAYS, _BEFORE = 8, 14
_EACH = 40  # behaviours of a user, on average


def write(raw: Path, rows: int, seed: int) -> dict[str, Any]:
    """The four files, and the truth of the samples in their order."""
    generator = stream(seed, "taobao")
    users, ads = max(10, rows // 25), max(20, rows // 31)
    cates, brands = max(10, rows // 2000), max(10, rows // 60)
    zipf = alias_table(cates, 1.0)

    def draw(size: int) -> np.ndarray:
        return np.array([pick(u, *zipf) for u in generator.random(size)])

    cate_of_ad, brand_of_ad = draw(ads), generator.integers(brands, size=ads)
    age = generator.integers(0, 7, users)
    favourite = draw(2 * users).reshape(users, 2)

    size = users * _EACH
    who = generator.integers(users, size=size)
    liked = generator.random(size) < 0.6
    cate = np.where(liked, favourite[who, generator.integers(2, size=size)], draw(size))
    when = _FIRST + generator.integers(-_BEFORE * _DAY, _DAYS * _DAY, size=size)
    what = generator.choice(np.array(["pv", "cart", "fav", "buy"]), size=size, p=[0.95, 0.02, 0.02, 0.01])

    user, ad = generator.integers(users, size=rows), generator.integers(ads, size=rows)
    time = _FIRST + generator.integers(_DAYS * _DAY, size=rows)
    share = _share(user, time, cate_of_ad[ad], who, when, cate)
    world = stream(seed, "taobao", "truth")
    logits = 0.6 * world.standard_normal(ads)[ad] + 0.3 * world.standard_normal(7)[age[user]] + PULL * share - 3.6
    label = (generator.random(rows) < 1 / (1 + np.exp(-logits))).astype(np.int64)

    raw.mkdir(parents=True, exist_ok=True)
    pid = np.where(generator.random(rows) < 0.4, "430539_1007", "430548_1007")
    _table(
        raw / "raw_sample.csv",
        "user,time_stamp,adgroup_id,pid,nonclk,clk",
        user + 1,
        time,
        ad + 1,
        pid,
        1 - label,
        label,
    )
    brand = np.where(generator.random(ads) < 0.3, "NULL", (brand_of_ad + 1).astype(str))
    price = np.round(np.exp(generator.normal(4, 1, ads)), 2)
    header = "adgroup_id,cate_id,campaign_id,customer,brand,price"
    campaign = np.arange(ads) // 2 + 1
    _table(
        raw / "ad_feature.csv", header, np.arange(ads) + 1, cate_of_ad + 1, campaign, campaign // 2 + 1, brand, price
    )
    header = "userid,cms_segid,cms_group_id,final_gender_code,age_level,pvalue_level,shopping_level,occupation"
    kept = np.flatnonzero(generator.random(users) < 0.95)  # the real profiles too lack one user in twenty
    pvalue = np.where(generator.random(len(kept)) < 0.5, "", generator.integers(1, 4, len(kept)).astype(str))
    columns = [kept + 1, kept % 97, age[kept] * 2, kept % 2 + 1, age[kept], pvalue, kept % 3 + 1, kept % 2, pvalue]
    _table(raw / "user_profile.csv", header + ",new_user_class_level ", *columns)
    _table(raw / "behavior_log.csv", "user,time_stamp,btag,cate,brand", who + 1, when, what, cate + 1, cate * 3 + 1)
    facts = truth.ceiling(label, logits, (time - _FIRST) // _DAY)
    return truth.save(raw, {"seed": seed, **facts}, logits)


def _share(
    user: np.ndarray, time: np.ndarray, cate: np.ndarray, who: np.ndarray, when: np.ndarray, seen: np.ndarray
) -> np.ndarray:
    """The share of a category among each user's last behaviours before a time."""
    order = np.lexsort((when, who))
    who, when, seen = who[order], when[order], seen[order]
    keys = who * 2**33 + when
    ends, begins = np.searchsorted(keys, user * 2**33 + time), np.searchsorted(keys, user * 2**33)
    hits, count = np.zeros(len(user)), np.minimum(ends - begins, SEEN)
    for back in range(1, SEEN + 1):
        there = count >= back
        hits[there] += seen[ends[there] - back] == cate[there]
    return hits / np.maximum(count, 1)


def _table(path: Path, header: str, *columns: np.ndarray) -> None:
    rows = zip(*(column.tolist() for column in columns), strict=True)
    path.write_text(header + "\n" + "".join(",".join(map(str, row)) + "\n" for row in rows))
