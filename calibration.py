"""How a model counts, learned from the usage it reports.

Pure. The tokens of a prompt are a linear function of its ``Counts``; its
coefficients are learned by recursive least squares, starting from what is common
to known vocabularies. Invariants:

* A state is a few dozen numbers, whatever was observed.
* Coefficients stay within what a vocabulary can do; no report moves them out.
* A report that contradicts a calibrated state teaches nothing by itself. Several
  in a row mean that the model counts differently now: then it is learned anew.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from .vocabulary import TEXT_CLASSES

# What a prompt is counted by: tokens by class, messages (with role and separators),
# tokens of tool schemas, flat tokens of media, and the prompt itself.
FEATURES = (*TEXT_CLASSES, "messages", "tools", "media", "prompt")
Counts = tuple[float, ...]
NOTHING: Counts = (0.0,) * len(FEATURES)
PROMPT: Counts = (*NOTHING[:-1], 1.0)

# Of every coefficient: what common vocabularies have, how far they differ (one
# standard deviation), and what none exceeds.
_PRIOR = (
    (1.15, 0.30, 0.3, 4.0),  # han
    (1.05, 0.35, 0.3, 4.0),  # kana
    (1.00, 0.08, 0.5, 2.5),  # latin
    (0.55, 0.25, 0.1, 3.0),  # digits
    (1.05, 0.10, 0.3, 3.0),  # punctuation
    (1.50, 0.50, 0.3, 6.0),  # other
    (4.00, 1.50, 0.0, 20.0),  # messages
    (1.00, 0.20, 0.2, 4.0),  # tools
    (1.00, 0.60, 0.0, 20.0),  # media
    (3.00, 300.0, 0.0, 50_000.0),  # prompt
)
# Error of a text that no coefficients explain, and of what cannot be seen.
_TEXT_NOISE, _FLOOR_NOISE = 0.02, 3.0
# Older observations slowly count less, so that a model may change.
_FORGETTING = 0.995

# A report contradicts that is further off than this and what is in doubt, or that
# is that many times smaller.
CONTRADICTION = 0.15
IMPLAUSIBLE = 4
# Factors that count as the same, and by how much a prompt must differ from the last
# one to be a proof of its own.
_SAME_FACTOR, _OTHER_PROMPT = 0.1, 0.005
# A model whose reports differ more by themselves is given so many times that.
_USUAL_ERRORS, _ERROR_WEIGHT = 4, 0.1
# Reports in a row that must agree with the state, or contradict it.
CALIBRATED_AFTER, RELEARN_AFTER = 3, 3
_PUBLISHED = (CALIBRATED_AFTER, 10, 30, 100, 300)
# A prompt of more tokens than any model takes is not one.
MAX_PROMPT = 100_000_000

# Shares by which an estimate may be too low: nothing reported yet, from what the
# prompt is made of; a model or a conversation that is still little known; the next
# prompt of a known one.
LEAST_UNKNOWN_MARGIN, MOST_UNKNOWN_MARGIN = 0.15, 0.40
NEW_PROMPT_MARGIN, CALIBRATED_MARGIN = 0.10, 0.03
_DOUBTS = 1.5


def add(first: Counts, second: Counts) -> Counts:
    """Counts of two things together."""
    return tuple(a + b for a, b in zip(first, second, strict=True))


def minus(first: Counts, second: Counts) -> Counts:
    """What the first has beyond the second; may be negative."""
    return tuple(a - b for a, b in zip(first, second, strict=True))


def plausible(reported: Any) -> bool:
    """Whether a reported number of prompt tokens can be one."""
    return type(reported) is int and 0 < reported <= MAX_PROMPT


def _prior_covariance() -> list[list[float]]:
    size = len(FEATURES)
    return [[_PRIOR[i][1] ** 2 if i == j else 0.0 for j in range(size)] for i in range(size)]


@dataclass(slots=True)
class Calibration:
    """What is known about how one model counts.

    Attributes:
        weights: Tokens a unit of each feature, as learned so far.
        published: The weights that requests are estimated with. They follow in few
            steps: what one chat teaches must not move the windows of all others.
        published_at: Observations when they were published last; 0 if never.
        covariance: How uncertain they are, in squares of the same.
        observations: Reports learned from since the last new start.
        usual_error: By what share reports differ from the estimate, on average.
        contradictions: Reports in a row that contradict in the same way.
        last_contradiction: Expected and reported tokens of the last of them.
    """

    weights: list[float] = field(default_factory=lambda: [prior[0] for prior in _PRIOR])
    covariance: list[list[float]] = field(default_factory=_prior_covariance)
    published: list[float] = field(default_factory=lambda: [prior[0] for prior in _PRIOR])
    published_at: int = 0
    observations: int = 0
    usual_error: float = 0.0
    contradictions: int = 0
    last_contradiction: tuple[float, int] | None = None

    @property
    def calibrated(self) -> bool:
        """Whether enough was reported to trust the estimate."""
        return self.observations >= CALIBRATED_AFTER

    def estimate(self, counts: Counts) -> float:
        """Tokens of something counted."""
        return math.sumprod(self.weights, counts)

    def contradicts(self, expected: float, counts: Counts, reported: int) -> bool:
        """Whether a report is further off than an estimate can be.

        Args:
            expected: The estimate of the whole prompt, in tokens.
            counts: The part of the prompt that is not known from a former report.
            reported: What the model counted.
        """
        if reported < expected:
            # There may be more in a prompt than is known, but not less.
            counts = (*counts[:-1], 0.0)
        share = max(CONTRADICTION, _USUAL_ERRORS * self.usual_error)
        bound = share * expected + 3 * (self._doubt(counts) + _FLOOR_NOISE)
        return abs(reported - expected) > bound or reported < expected / IMPLAUSIBLE

    def agree(self, expected: float, reported: int) -> None:
        """Notes how far off an estimate was that is not contradicted."""
        error = abs(reported - expected) / expected
        self.usual_error += _ERROR_WEIGHT * (error - self.usual_error)

    def margin(self, anchored: bool, sample: Counts) -> float:
        """By what share an estimate may be too low.

        Args:
            anchored: Whether it starts from a reported prompt.
            sample: Counts of something like the prompt.
        """
        if self.published_at or anchored:
            return CALIBRATED_MARGIN if anchored and self.published_at else NEW_PROMPT_MARGIN
        unknown = _DOUBTS * self._doubt(sample) / max(1.0, self.estimate(sample))
        return max(LEAST_UNKNOWN_MARGIN, min(MOST_UNKNOWN_MARGIN, unknown))

    def _doubt(self, counts: Counts) -> float:
        """Tokens by which an estimate may be off, one standard deviation."""
        return math.sqrt(max(0.0, math.sumprod(self._spread(counts), counts)))

    def _spread(self, counts: Counts) -> list[float]:
        return [math.sumprod(row, counts) for row in self.covariance]

    def observe(self, counts: Counts, tokens: float) -> None:
        """Learns from a report.

        Args:
            counts: What was reported on: a whole prompt, or what one prompt has
                beyond another (then negative counts are right, too).
            tokens: What the model counted.
        """
        spread = self._spread(counts)
        size = math.sumprod(self.weights, map(abs, counts))
        noise = (_TEXT_NOISE * size) ** 2 + _FLOOR_NOISE**2
        total = math.sumprod(spread, counts) + noise
        surprise = tokens - self.estimate(counts)
        # One odd text must not undo what many have taught.
        bound = 4 * math.sqrt(total)
        surprise = max(-bound, min(bound, surprise))
        for i, gain in enumerate(spread):
            _, _, low, high = _PRIOR[i]
            self.weights[i] = max(low, min(high, self.weights[i] + gain / total * surprise))
        self._shrink(spread, total)
        self.observations = min(self.observations + 1, 1_000_000)
        self.contradictions, self.last_contradiction = 0, None
        if self.observations in _PUBLISHED or self.observations % _PUBLISHED[-1] == 0:
            self.published, self.published_at = list(self.weights), self.observations

    def _shrink(self, spread: Sequence[float], total: float) -> None:
        size = len(FEATURES)
        for i in range(size):
            for j in range(size):
                self.covariance[i][j] -= spread[i] * spread[j] / total
        # Forgetting must not make anything less certain than at the start.
        most = [_PRIOR[i][1] ** 2 / max(self.covariance[i][i], 1e-12) for i in range(size)]
        scales = [math.sqrt(min(1 / _FORGETTING, limit)) for limit in most]
        for i in range(size):
            for j in range(size):
                self.covariance[i][j] *= scales[i] * scales[j]

    def repeats(self, expected: float, reported: int) -> bool:
        """Whether a contradiction is off by the same factor as the last one."""
        if self.last_contradiction is None:
            return False
        before = self.last_contradiction[1] / self.last_contradiction[0]
        return abs(reported / expected / before - 1) < _SAME_FACTOR

    def contradict(self, expected: float, reported: int) -> bool:
        """Notes a report that contradicts; True if the state starts anew with it."""
        if not self.repeats(expected, reported):
            self.contradictions = 1
        elif abs(reported / self.last_contradiction[1] - 1) >= _OTHER_PROMPT:
            self.contradictions += 1
        self.last_contradiction = (expected, reported)
        if self.contradictions < RELEARN_AFTER:
            return False
        self.covariance, self.observations = _prior_covariance(), 0
        self.contradictions, self.last_contradiction = 0, None
        return True

    def as_json(self) -> dict[str, Any]:
        """The state as JSON values."""
        return {
            "weights": self.weights,
            "published": self.published,
            "published_at": self.published_at,
            "covariance": self.covariance,
            "observations": self.observations,
            "usual_error": self.usual_error,
        }

    @classmethod
    def from_json(cls, stored: Any) -> "Calibration":
        """A stored state; a new one if it is not usable any more."""
        try:
            weights = [float(value) for value in stored["weights"]]
            published = [float(value) for value in stored["published"]]
            published_at = int(stored["published_at"])
            covariance = [[float(value) for value in row] for row in stored["covariance"]]
            observations = int(stored["observations"])
            usual_error = float(stored["usual_error"])
        except (TypeError, ValueError, KeyError, OverflowError):
            return cls()
        numbers = [
            usual_error,
            *weights,
            *published,
            *(value for row in covariance for value in row),
        ]
        shape = {len(weights), len(published), len(covariance), *map(len, covariance)}
        if shape != {len(FEATURES)} or not all(map(math.isfinite, numbers)):
            return cls()
        return cls(weights, covariance, published, published_at, max(0, observations), usual_error)
