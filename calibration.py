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
# tokens of tool schemas, flat tokens of media, tokens of reasoning (not every provider
# counts what it is sent of that), and the prompt itself.
FEATURES = (*TEXT_CLASSES, "messages", "tools", "media", "reasoning", "prompt")
Counts = tuple[float, ...]
NOTHING: Counts = (0.0,) * len(FEATURES)
PROMPT: Counts = (*NOTHING[:-1], 1.0)
MEDIA, REASONING = FEATURES.index("media"), FEATURES.index("reasoning")

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
    (0.50, 0.40, 0.0, 4.0),  # reasoning
    (3.00, 300.0, 0.0, 50_000.0),  # prompt
)
# Error of a text that no coefficients explain, and of what cannot be seen.
_TEXT_NOISE, _FLOOR_NOISE = 0.02, 3.0
# By what share one picture or recording differs from another.
_MEDIA_NOISE = 0.5
# What one conversation has in common, by which its texts differ from all others.
_TALK_NOISE, _LEAST_SCALE, _MOST_SCALE = 0.03, 0.3, 3.0
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
            steps: what one chat teaches must not move the windows of all others. Those
            of media and reasoning follow at once.
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

    def contradicts(
        self, expected: float, counts: Counts, reported: int, pictures: float = 0.0
    ) -> bool:
        """Whether a report is further off than an estimate can be.

        Args:
            expected: The estimate of the whole prompt, in tokens.
            counts: The part of the prompt that is not known from a former report.
            reported: What the model counted.
            pictures: Flat tokens of media that may be others than those known.
        """
        if reported < expected:
            # There may be more in a prompt than is known, but not less.
            counts = (*counts[:-1], 0.0)
        share = max(CONTRADICTION, _USUAL_ERRORS * self.usual_error)
        doubt = self._doubt(counts) + self._media_noise * pictures + _FLOOR_NOISE
        bound = share * expected + 3 * doubt
        return abs(reported - expected) > bound or reported < expected / IMPLAUSIBLE

    def fitted(self, weights: Sequence[float], counts: Counts, reported: int) -> list[float] | None:
        """Weights under which a prompt has the size that was reported for it.

        What is off is put down to media and reasoning as far as these are in doubt, so
        that the rest is still right once they are gone; the remainder to everything
        else in proportion.

        Args:
            weights: The weights to start from.
            counts: What the prompt held.
            reported: What the model counted.

        Returns:
            None if there was nothing that could be told from it.
        """
        sizes = [weight * count for weight, count in zip(weights, counts, strict=True)]
        firm = sum(sizes) - sizes[MEDIA] - sizes[REASONING]
        if firm <= 0:
            return None
        doubts = {i: self._loose_doubt(i) * counts[i] for i in (MEDIA, REASONING)}
        total = sum(doubt**2 for doubt in doubts.values()) + (_TALK_NOISE * firm) ** 2
        off, fitted = reported - sum(sizes), list(weights)
        rest = off
        for i, doubt in doubts.items():
            if counts[i] > 0:
                share = max(-sizes[i], off * doubt**2 / total)
                fitted[i] += share / counts[i]
                rest -= share
        scale = max(_LEAST_SCALE, min(_MOST_SCALE, 1 + rest / firm))
        return [w if i in doubts else scale * w for i, w in enumerate(fitted)]

    def _loose_doubt(self, feature: int) -> float:
        """How far off a unit of media or reasoning may be in one conversation."""
        doubt = math.sqrt(max(0.0, self.covariance[feature][feature]))
        return max(doubt, self._media_noise) if feature == MEDIA else doubt

    @property
    def _media_noise(self) -> float:
        return _MEDIA_NOISE * max(1.0, self.weights[MEDIA])

    def stalls(self, grown: Counts, expected: float, reported: int, error: float) -> bool:
        """Whether a prompt became longer and its reported size did not.

        The host drops the oldest messages of what was too long, or the model does.

        Args:
            grown: What the prompt has beyond an earlier one, all of it text.
            expected: Tokens of that, estimated.
            reported: By how much the reported size grew.
            error: By what share the whole prompt was estimated too high.
        """
        unusual = error > _USUAL_ERRORS * self.usual_error
        seen = expected > 4 * _FLOOR_NOISE and reported < expected / IMPLAUSIBLE
        return unusual and seen and min(grown) >= 0 == grown[REASONING]

    def agree(self, expected: float, reported: int) -> None:
        """Notes how far off an estimate was that is not contradicted."""
        error = abs(reported - expected) / max(1.0, expected)
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

    def observe(self, counts: Counts, tokens: float, pictures: float = 0.0) -> None:
        """Learns from a report.

        Args:
            counts: What was reported on: a whole prompt, or what one prompt has
                beyond another (then negative counts are right, too).
            tokens: What the model counted.
            pictures: As in ``contradicts``.
        """
        spread = self._spread(counts)
        size = math.sumprod(self.weights, map(abs, counts))
        noise = (_TEXT_NOISE * size) ** 2 + _FLOOR_NOISE**2
        noise += (self._media_noise * pictures) ** 2
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
        # Only prompts that hold some are moved by these.
        for i in (MEDIA, REASONING):
            self.published[i] = self.weights[i]
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
