"""Makes the lessons (tests/data/routing/taught.tsv): `python -m benchmarks.routing_training.teach MODEL_DIRECTORY`.

MODEL_DIRECTORY holds a small sentence model of English in the transformers format (all-MiniLM-L6-v2 was used). Needs
torch and transformers beside numpy and scikit-learn; neither the model nor its numbers become part of the product:

    labelled English messages > sentence vectors > a logistic head        the teacher
    every word of the messages and English term of the lexicon > its vector > the head > five shares
    shares x how rare the word is in the messages                         the lesson, five numbers from 0 to 255
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np  # type: ignore[import-not-found]
import torch  # type: ignore[import-not-found]
from sklearn.linear_model import LogisticRegression  # type: ignore[import-not-found]
from transformers import AutoModel, AutoTokenizer  # type: ignore[import-not-found]

from benchmarks.routing_training import dataset
from butlers.switchboard.routing.lexicon import TAUGHT_TOKENS
from butlers.switchboard.routing.model import CLASSES

BATCH = 128
LONGEST = 256  # word pieces of a message


def vectors(texts: Sequence[str], directory: Path) -> Any:
    """The mean of a text's word pieces, at length one."""
    pieces, model = AutoTokenizer.from_pretrained(directory), AutoModel.from_pretrained(directory).eval()
    order = sorted(range(len(texts)), key=lambda index: len(texts[index]))
    found: Any = np.zeros((len(texts), model.config.hidden_size), np.float32)
    with torch.inference_mode():
        for at in range(0, len(order), BATCH):
            own = order[at : at + BATCH]
            batch = pieces(
                [texts[i] for i in own], padding=True, truncation=True, max_length=LONGEST, return_tensors="pt"
            )
            mask = batch["attention_mask"].unsqueeze(-1)
            mean = (model(**batch).last_hidden_state * mask).sum(1) / mask.sum(1)
            found[own] = torch.nn.functional.normalize(mean, dim=1).numpy()
    return found


def examples() -> tuple[list[str], list[int]]:
    english = [message for message in dataset.tuning() if message.lang == "en"]
    pairs = [(m.text, next(iter(m.targets))) for m in english if m.is_example]
    pairs += [(text, butler) for m in english for butler, text in m.parts]
    return [text for text, _ in pairs], [CLASSES.index(butler) for _, butler in pairs]


def terms(texts: Sequence[str]) -> list[str]:
    spoken = {token.text for text in texts for token in dataset.said(text) if token.kind == "word"}
    listed = {" ".join(token.text for token in dataset.said(term)) for term in dataset.english_terms()}
    return sorted(spoken | {term for term in listed if 0 < len(term.split()) <= TAUGHT_TOKENS})


def shares(scores: Any) -> Any:
    """Compared with the average word: alone, most words look like nobody's."""
    scores = scores - scores.mean(axis=0)
    grown = np.exp(scores - scores.max(axis=1, keepdims=True))
    return grown / grown.sum(axis=1, keepdims=True)


def rarity(words: Sequence[str], texts: Sequence[str]) -> Any:
    seen = Counter(word for text in texts for word in {token.text for token in dataset.said(text)})
    counts: Any = np.array([seen[word] for word in words])
    return np.clip(np.log(len(texts) / (1 + counts)) / np.log(len(texts)), 0, 1)


def main(arguments: Sequence[str]) -> int:
    directory = Path(arguments[0])
    texts, labels = examples()
    words = terms(texts)
    head = LogisticRegression(C=10, max_iter=300, tol=1e-3).fit(vectors(texts, directory), labels)
    told = shares(head.decision_function(vectors(words, directory)))
    scores = np.rint(told * rarity(words, texts)[:, None] ** 2 * 255).astype(int)
    lines = (f"{word}\t{' '.join(map(str, row))}\n" for word, row in zip(words, scores, strict=True))
    dataset.TAUGHT.write_text("".join(lines), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
