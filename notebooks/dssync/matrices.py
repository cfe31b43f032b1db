"""What DS-Sync's groups do to the replicas, by matrices: how fast a disagreement falls, and when all hold the average."""

import numpy as np

from lib.protocols.dssync import DSSync, factors


def mixing_matrix(rule: DSSync, round: int, workers: int) -> np.ndarray:
    """A round's matrix: row i holds the weights of all replicas in worker i's."""
    matrix = np.zeros((workers, workers))
    for group in rule.groups(round, workers):
        matrix[np.ix_(group, group)] = 1 / len(group)
    return matrix


def residual(rule: DSSync, rounds: int, workers: int) -> float:
    """The largest share of the workers' distance from their average that so many rounds can leave."""
    product = np.eye(workers)
    for round in range(rounds):
        product = mixing_matrix(rule, round, workers) @ product
    return float(np.linalg.norm(product - 1 / workers, 2).round(12))  # what is below is the arithmetic's own


def spectral_gap(rule: DSSync, workers: int) -> float:
    """1 minus the residual of one round, in the geometric mean of eight."""
    return 1 - residual(rule, 8, workers) ** (1 / 8)


def steps_to_average(rule: DSSync, workers: int) -> int | None:
    """Local steps after which all workers hold the exact average of their replicas before the first of these mixes, and of all
    updates since that had their part (Eq. 2); None: never."""
    crews = workers // rule.crew
    bases = factors(crews, rule.size_for(crews))
    rounds = None if bases is None else max(len(bases), min(rule.crew - 1, 1))
    candidates = [each for each in (rule.whole, rounds) if each is not None]
    return min(candidates) * rule.every if candidates else None
