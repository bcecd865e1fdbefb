"""Assignments printed as code. A target is a `Printer` with its tables; most targets need nothing more."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from longlag.cells._assignments import Assignments, Expression
from longlag.cells._language import LANGUAGE

_SUM, _PRODUCT, _ATOM = 1, 2, 3  # how tightly a printed piece binds


@dataclass(frozen=True)
class Printer:
    """Prints sums, products, powers and calls as in Python and C; the differences between targets are fields.

    Attributes:
        target: the target's name, for messages.
        functions: name in the language of cells -> name in the target; a function without an entry is refused.
        number: how a literal is written; ``"number({})"`` where its type matters.
        power: how a general power is written, from base and exponent.
        powers: how the power with this integer exponent is written, if not with ``power``.
        line: how an assignment is written, from name and expression.
        hint: ends the message that refuses a function.
    """

    target: str
    functions: Mapping[str, str]
    number: str = "{}"
    power: str = "{}**{}"
    powers: Mapping[int, str] = field(default_factory=dict)
    line: str = "{} = {}"
    hint: str = ""

    def function(self, form: Assignments, comment: str = "") -> str:
        """A Python function that returns a tuple. Targets with another syntax build functions from `lines`."""
        body = [f'"""{comment}"""'] * bool(comment) + self.lines(form)
        body = [f"    {line}" for line in [*body, f"return {', '.join(form.outputs)},"]]
        return "\n".join([f"def {form.name}({', '.join(form.inputs)}):", *body, ""])

    def lines(self, form: Assignments) -> list[str]:
        """One line of code per assignment."""
        for _, value in form.lines:
            for name in sorted(_functions_in(value) - self.functions.keys()):
                raise ValueError(f"{self.target} cannot print {name}(…) of cell {form.owner}{self.hint}")
        return [self.line.format(name, self.expression(value)) for name, value in form.lines]

    def expression(self, value: Expression) -> str:
        """One expression."""
        return self._print(value)[0]

    def uses_power(self, form: Assignments) -> bool:
        """Whether a general power is printed, not only those of ``powers`` and products of names."""
        import sympy

        pairs = [node.as_base_exp() for _, value in form.lines for node in value.atoms(sympy.Pow)]
        return any(abs(n) != 1 and self._short_power(base, abs(n)) is None for base, n in pairs)

    def _print(self, e: Expression) -> tuple[str, int]:
        if e.is_Symbol:
            return str(e), _ATOM
        if e.is_Number:
            text = self.number.format(int(e) if e.is_Integer else repr(float(e)))
            return (text, _ATOM) if float(e) >= 0 else (f"({text})", _ATOM)
        if e.is_Add:
            return self._sum(e), _SUM
        if e.is_Mul:
            return self._product(e), _PRODUCT
        if e.is_Pow:
            return self._power(*e.as_base_exp())
        return f"{self.functions[type(e).__name__]}({', '.join(map(self.expression, e.args))})", _ATOM

    def _sum(self, e: Expression) -> str:
        text = ""
        # positive terms first: "1 - s" rather than "-s + 1"
        for term in sorted(e.args, key=lambda term: term.could_extract_minus_sign()):
            if text and term.could_extract_minus_sign():
                text += f" - {self._bracket(-term, _PRODUCT)}"
            else:
                text += (" + " if text else "") + self._bracket(term, _PRODUCT)
        return text

    def _product(self, e: Expression) -> str:
        above, below = [], []
        for factor in e.args:
            base, exponent = factor.as_base_exp()
            if exponent.is_Number and exponent.is_negative:
                below.append(base**-exponent)
            else:
                above.append(factor)
        text = "*".join(self._bracket(factor, _PRODUCT) for factor in above) or self.number.format(1)
        return text + "".join(f"/{self._bracket(factor, _ATOM)}" for factor in below)

    def _power(self, base: Expression, exponent: Expression) -> tuple[str, int]:
        if exponent.is_negative:
            return f"{self.number.format(1)}/{self._bracket(base**-exponent, _ATOM)}", _PRODUCT
        return self._short_power(base, exponent) or (
            self.power.format(self._bracket(base, _ATOM), self._bracket(exponent, _ATOM)),
            _PRODUCT,
        )

    def _short_power(self, base: Expression, exponent: Expression) -> tuple[str, int] | None:
        """A power that needs no call of a general power function."""
        if base.is_Symbol and exponent in (2, 3):
            return "*".join([str(base)] * int(exponent)), _PRODUCT
        if exponent.is_Integer and int(exponent) in self.powers:
            return self.powers[int(exponent)].format(self.expression(base)), _ATOM
        return None

    def _bracket(self, e: Expression, at_least: int) -> str:
        text, binds = self._print(e)
        return text if binds >= at_least else f"({text})"


def _functions_in(value: Expression) -> set[str]:
    import sympy

    return {type(applied).__name__ for applied in value.atoms(sympy.Function)}


TORCH = Printer("engine 'reference'", {name: name for name in LANGUAGE})
