"""Trains the local classifier: `python -m benchmarks.routing_training.train [--folds 5] [--out FILE]`.

Needs numpy and scikit-learn, which the product does not: install them beside it (docs/operating/routing.md). With
`--folds` it cross-validates on the tuning messages and writes nothing. The held-out half is never read here.
"""

from __future__ import annotations

import argparse
import json
import sys
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse  # type: ignore[import-untyped]
from sklearn.linear_model import LogisticRegression  # type: ignore[import-not-found]
from sklearn.model_selection import StratifiedKFold  # type: ignore[import-not-found]

from benchmarks.routing_training import dataset
from butlers.daemon.settings import shipped_roster
from butlers.roster import load_roster
from butlers.switchboard.registry import RegisteredButler
from butlers.switchboard.routing import model
from butlers.switchboard.routing.classifier import Inquiry, LocalClassifier
from butlers.switchboard.routing.features import BUCKETS, bucket, token_features
from butlers.switchboard.routing.model import (
    CLASSES,
    LEXICON_SCALE,
    Lexicon,
    dense_features,
    hit_feature,
    taught_features,
)

OUT = Path(model.__file__).parent / "routing.bin"
SEEN_AT_LEAST = 2  # in how many messages a feature stands before it counts
C = 5.0
SEVERAL_COUNT = 1.5  # how much a message of several subjects weighs when the gate is learned
BUTLERS = [
    RegisteredButler(name=name, eligibility_state="active", triggers=(), capabilities=("route.execute",))
    for name in CLASSES
]
DENSE = len(dense_features((), 0)) + len(taught_features((), ()))


def features(texts: Sequence[str], lexicon: Lexicon) -> Any:
    indptr, indices, values = [0], [], []
    for text in texts:
        said = dataset.said(text)
        hits = lexicon.hits(said)
        plain = [index for own, together in token_features(said, lexicon.names) for index in (*own, *together)]
        norm = max(len(plain), 1) ** 0.5
        pairs = [(index, 1 / norm) for index in plain]
        pairs += [(bucket(hit_feature(hit, said)), LEXICON_SCALE / norm) for hit in hits]
        dense = dense_features(hits, len(said)) + taught_features(lexicon.lessons(said), said)
        pairs += [(BUCKETS + index, value) for index, value in enumerate(dense)]
        indices += [index for index, _ in pairs]
        values += [value for _, value in pairs]
        indptr.append(len(indices))
    matrix = sparse.csr_matrix((values, indices, indptr), shape=(len(texts), BUCKETS + DENSE))
    matrix.sum_duplicates()
    return matrix


def fit(matrix: Any, labels: Any) -> tuple[Any, Any]:
    """Weights (features x classes) and bias; only what was seen often enough has a weight."""
    seen = np.bincount(matrix.indices, minlength=matrix.shape[1])
    kept = np.flatnonzero(seen >= SEEN_AT_LEAST)
    fitted = LogisticRegression(C=C, max_iter=80, tol=2e-3).fit(matrix[:, kept], labels)
    weights = np.zeros((matrix.shape[1], len(CLASSES)))
    weights[kept] = fitted.coef_.T
    return weights, fitted.intercept_


def examples() -> tuple[list[str], Any, list[bool]]:
    """Texts of one butler each; the parts of a message with several are examples of their own."""
    messages = dataset.tuning()
    pairs = [(m.text, next(iter(m.targets)), True) for m in messages if m.is_example]
    pairs += [(text, butler, False) for m in messages for butler, text in m.parts]
    return [p[0] for p in pairs], np.array([CLASSES.index(p[1]) for p in pairs]), [p[2] for p in pairs]


def packed(weights: Any, bias: Any, lexicon: Lexicon, messages: int, gate: Sequence[float]) -> bytes:
    plain, dense = weights[:BUCKETS], weights[BUCKETS:]
    scale = float(np.abs(plain).max()) / 127
    header = {
        "version": f"linear-{dataset.fingerprint()[:12]}",
        "data": dataset.fingerprint(),
        "messages": messages,
        "triggers": {
            name: sorted(config.butler.registry.triggers) for name, config in load_roster(shipped_roster()).items()
        },
        "scale": scale,
        "gate": list(gate),
        "bias": [round(float(value), 6) for value in bias],
        "dense": [[round(float(value), 6) for value in row] for row in dense],
    }
    return model.dump(header, array("b", np.rint(plain / scale).astype(np.int8).tobytes()), lexicon)


def fit_gate(folds: int, lexicon: Lexicon) -> list[float]:
    """When to take a message apart, learned from how models that have not seen it would do it."""
    messages = dataset.tuning()
    texts, labels, own = [], [], []
    for number, message in enumerate(messages):
        single = [(message.text, *message.targets)] if message.is_example else []
        for text, butler in [*single, *((text, butler) for butler, text in message.parts)]:
            texts.append(text)
            labels.append(CLASSES.index(butler))
            own.append(number % folds)
    matrix, answers, turn = features(texts, lexicon), np.array(labels), np.array(own)
    rows, right, weight = [], [], []
    for fold in range(folds):
        weights, bias = fit(matrix[turn != fold], answers[turn != fold])
        classifier = LocalClassifier(model.load(packed(weights, bias, lexicon, 0, ())))
        for message in messages[fold::folds]:
            inquiry = Inquiry(classifier.model, message.text, BUTLERS)
            split = inquiry.candidate()
            if len({name for name, _ in split}) > 1:
                rows.append(inquiry.split_features(split))
                right.append(len(message.targets) > 1)
                weight.append(SEVERAL_COUNT if len(message.targets) > 1 else 1.0)
    gate = LogisticRegression(C=1.0, fit_intercept=False, max_iter=1000).fit(rows, right, sample_weight=weight)
    agreed = float(np.mean(gate.predict(rows) == np.array(right)))
    print(json.dumps({"splits": len(rows), "several": int(sum(right)), "gate": round(agreed, 3)}))
    return [round(float(value), 5) for value in gate.coef_[0]]


def cross_validate(folds: int) -> dict[str, Any]:
    texts, labels, whole = examples()
    matrix = features(texts, dataset.lexicon())
    right, total = 0, 0
    for train, test in StratifiedKFold(folds, shuffle=True, random_state=1).split(labels, labels):
        weights, bias = fit(matrix[train], labels[train])
        checked = [index for index in test if whole[index]]
        predicted = (matrix[checked] @ weights + bias).argmax(axis=1)
        right, total = right + int((predicted == labels[checked]).sum()), total + len(checked)
    return {"folds": folds, "messages": total, "accuracy": round(right / total, 4)}


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folds", type=int, default=0)
    parser.add_argument("--out", type=Path, default=OUT)
    asked = parser.parse_args(arguments)
    if asked.folds:
        print(json.dumps(cross_validate(asked.folds)))
        return 0
    texts, labels, _ = examples()
    lexicon = dataset.lexicon()
    weights, bias = fit(features(texts, lexicon), labels)
    asked.out.write_bytes(packed(weights, bias, lexicon, len(texts), fit_gate(3, lexicon)))
    print(json.dumps({"written": str(asked.out), "bytes": asked.out.stat().st_size, "messages": len(texts)}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
