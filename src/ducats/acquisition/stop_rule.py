"""When a run asks for no more labels, although its budget is not spent. Does not import torch."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class StopRule:
    """A condition on the figures of the audit, which must hold for their whole interval."""

    quantity: Literal["gain", "accuracy", "miou"]
    threshold: float  # a fraction: 0.005 for half a point

    @classmethod
    def parse(cls, text: str) -> "StopRule":
        """Parse ``gain<0.5``, in points of accuracy, ``accuracy>95%`` or ``miou>60%``.

        >>> StopRule.parse("gain < 0.5"), StopRule.parse("accuracy>95%")
        (StopRule(quantity='gain', threshold=0.005), StopRule(quantity='accuracy', threshold=0.95))
        """
        match = re.fullmatch(r"\s*(?:(gain)\s*<|(accuracy|miou)\s*>)\s*(\d+(?:\.\d+)?)\s*%?\s*", text)
        if match is None or float(match[3]) > 100:
            raise ValueError(
                f"--until (acquisition.until) must be like gain<0.5 (points of accuracy), accuracy>95% or "
                f"miou>60%, not {text!r}"
            )
        quantity: Any = match[1] or match[2]
        return cls(quantity, float(match[3]) / 100)

    def __str__(self) -> str:
        """Return the rule as it is written.

        >>> str(StopRule("gain", 0.005)), str(StopRule("accuracy", 0.95))
        ('gain<0.5', 'accuracy>95%')
        """
        percent = f"{100 * self.threshold:g}"
        return f"gain<{percent}" if self.quantity == "gain" else f"{self.quantity}>{percent}%"

    def reason(self, record: Mapping[str, Any]) -> str:
        """Say why the rule ends the queries, by the record of an audit; empty if it does not."""
        interval = record if self.quantity == "accuracy" else record.get("miou")
        if self.quantity != "gain" and interval is not None and interval["low"] > self.threshold:
            name = "accuracy" if self.quantity == "accuracy" else "mIoU"
            return f"{name} is at least {100 * interval['low']:.1f} % (95 % certain), as asked for: {self}"
        gain = record.get("gain")
        if self.quantity == "gain" and gain is not None and gain["high"] < self.threshold:
            most = f"{100 * gain['high']:.2f}".rstrip("0").rstrip(".")
            return f"the last round gained at most {most} points (95 % certain), as asked for: {self}"
        return ""
