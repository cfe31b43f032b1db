"""Questions: samples, encoding, spans and SQuAD's rules."""

import numpy as np
import pytest

from lib.tasks.text import (
    CLS,
    PAD,
    SEP,
    UNKNOWN,
    Answers,
    Question,
    Vocabulary,
    best_spans,
    encode_questions,
    exact_match,
    f1_score,
    normalise_answer,
)

PLAN = Answers(kinds=3, words=5, slots=5, distractors=2, ambiguity=0.4)
TEXT = "The cat sat. A dog, named Rex, barked at the cat."


def test_the_answer_is_the_stretch_of_the_kind_asked_for():
    drawn, chance = PLAN.draw_with_bayes_accuracy(300, seed=0, first=0)
    assert drawn.tokens.shape == (300, 24) and drawn.tokens.max() < 4 + 3 + 4 * 5
    for tokens, (first, last), sure in zip(drawn.tokens, drawn.spans, chance, strict=True):
        assert tokens[0] == CLS and tokens[2] == tokens[-1] == SEP
        asked = tokens[1] - 4
        kinds = (tokens[3:-1] - 7) // 5
        places = np.flatnonzero(kinds == asked) + 3
        slots = {(place - 3) // 4 for place in places}
        assert len(slots) == (1 if sure == 1 else 2)
        mine = [place for place in places if (place - 3) // 4 == (first - 3) // 4]
        assert mine == list(range(first, last + 1))


def test_a_share_of_the_questions_is_ambiguous():
    assert PLAN.draw_with_bayes_accuracy(5_000, seed=1, first=0)[1].mean() == pytest.approx(0.8, abs=0.02)


def test_words_are_cut_with_their_places_and_the_commonest_are_kept():
    words = Vocabulary([TEXT], 8)  # four beside the special ones
    ids, places = words.encode("The Cat barked")
    assert len(words) == 8 and ids[0] >= 4 and ids[1] >= 4 and ids[2] == UNKNOWN
    assert places == [(0, 3), (4, 7), (8, 14)]


def test_a_question_becomes_a_sample():
    words = Vocabulary([TEXT, "Who barked?"], 100)
    question = Question("Who barked?", TEXT, ("Rex",), TEXT.index("Rex"))
    made = encode_questions(words, [question], 24, around=True)
    tokens, segments, sizes, spans = (part[0] for part in made.questions)
    first, last = spans - made.begins[0]
    begin, end = made.offsets[0][first][0], made.offsets[0][last][1]
    assert TEXT[begin:end] == "Rex" and sizes == 1 + 3 + 1 + 15 + 1
    assert tokens[0] == CLS and tokens[sizes - 1] == SEP and (tokens[sizes:] == PAD).all()
    assert segments.tolist() == [0] * 5 + [1] * 16 + [0] * 3


@pytest.mark.parametrize("around", [True, False])
def test_what_is_too_long_is_cut_around_the_answer_in_training_alone(around):
    text = " ".join(f"w{n}" for n in range(100))
    words = Vocabulary([text], 200)
    made = encode_questions(words, [Question("w1", text, ("w90 w91",), text.index("w90"))], 20, around=around)
    (first, last), begin = made.questions.spans[0], made.begins[0]
    if around:
        assert text[made.offsets[0][first - begin][0] : made.offsets[0][last - begin][1]] == "w90 w91"
    else:
        assert made.offsets[0][0] == (0, 2) and first == last == made.questions.sizes[0] - 1
    assert made.questions.sizes[0] == 20


def test_the_best_stretch_lies_in_the_passage_and_runs_forward():
    scores = np.zeros((1, 2, 8))
    scores[0, 0, 1] = 9  # in the question
    scores[0, 0, 5], scores[0, 1, 3] = 4, 5  # the best end comes before the best beginning
    scores[0, 1, 6] = 3
    assert best_spans(scores, np.array([3]), np.array([8])).tolist() == [[5, 6]]
    assert best_spans(scores, np.array([3]), np.array([8]), longest=1).tolist() == [[3, 3]]


def test_scores_of_answers_by_hand():
    assert normalise_answer("The  Cat's, (dog)!") == ["cats", "dog"]
    assert exact_match(["a", "b"], [["a"], ["a", "b"]]) == 1 and exact_match(["a"], [["b"]]) == 0
    assert f1_score(["a", "b"], [["b", "c", "d"], ["x"]]) == pytest.approx(0.4)
    assert f1_score([], [[]]) == 1 and f1_score([], [["a"]]) == 0
