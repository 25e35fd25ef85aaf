"""What a user says of a layer's variables by their paths: frozen, regularized, constrained."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import keras

from jaxbridge.core.arguments import checked
from jaxbridge.errors import StructureError
from jaxbridge.layers.keras_arguments import CONSTRAINT, REGULARIZER


class Rule(NamedTuple):
    """One sentence about the variables whose path matches.

    Attributes:
        attribute: the attribute of the variable that is set: "trainable", "regularizer" or "constraint".
        pattern: as `fnmatch` reads it: `*` stands for any text, slashes too.
        value: what it is set to.
    """

    attribute: str
    pattern: str
    value: Any


class PathRules:
    """Rules in the order in which they were given; a later one wins."""

    def __init__(self, rules: Iterable[Rule] = ()):
        self.rules = list(rules)

    def add(self, rule: Rule, variables: Mapping[str, keras.Variable] | None) -> None:
        """Adds a rule and applies it to a built layer's variables by path (None: the layer is not built).

        Raises:
            StructureError: the pattern matches nothing.
        """
        if variables is not None:
            self._apply(rule, variables)
        self.rules.append(rule)

    def apply(self, variables: Mapping[str, keras.Variable]) -> None:
        """Applies all rules; a StructureError names a pattern that matches nothing."""
        for rule in self.rules:
            self._apply(rule, variables)

    def _apply(self, rule: Rule, variables: Mapping[str, keras.Variable]) -> None:
        matched = [variable for path, variable in variables.items() if _matches(path, rule.pattern)]
        if not matched:
            raise StructureError(f"No variable matches '{rule.pattern}'. The paths are: {', '.join(variables)}.")
        for variable in matched:
            setattr(variable, rule.attribute, rule.value)

    def get_config(self) -> list[Any]:
        """Returns the rules for saving."""
        return [[rule.attribute, rule.pattern, keras.saving.serialize_keras_object(rule.value)] for rule in self.rules]

    @classmethod
    def from_config(cls, config: Iterable[Any]) -> PathRules:
        """Returns the rules that `get_config` wrote."""
        return cls(Rule(a, pattern, keras.saving.deserialize_keras_object(value)) for a, pattern, value in config)


class RuleMethods:
    """The methods of a layer that say something of its trainable variables by their paths."""

    _rules: PathRules
    _runtime: Any

    @checked()
    def freeze(self, pattern: str = "*") -> None:
        """Makes the variables whose path matches non-trainable; kept in the config.

        Args:
            pattern: such as "encoder/*" or "params/encoder/*/kernel"; `*` stands for any text, slashes too.

        Raises:
            StructureError: nothing matches (said when the layer is built, if it is not yet).
        """
        self._set_rule(Rule("trainable", pattern, False))

    @checked()
    def unfreeze(self, pattern: str = "*") -> None:
        """Makes the variables whose path matches trainable again; see `freeze`."""
        self._set_rule(Rule("trainable", pattern, True))

    @checked(regularizer=REGULARIZER)
    def regularize(self, pattern: str, regularizer: Any) -> None:
        """Adds a Keras regularizer's loss for the variables whose path matches; see `freeze`."""
        self._set_rule(Rule("regularizer", pattern, keras.regularizers.get(regularizer)))

    @checked(constraint=CONSTRAINT)
    def constrain(self, pattern: str, constraint: Any) -> None:
        """Applies a Keras constraint after every update of the variables whose path matches; see `freeze`."""
        self._set_rule(Rule("constraint", pattern, keras.constraints.get(constraint)))

    def _set_rule(self, rule: Rule) -> None:
        tree = self._runtime.params
        self._rules.add(rule, None if tree is None else tree.by_path())


def _matches(path: str, pattern: str) -> bool:
    # The first part is the collection ("params"); it may be left out.
    return fnmatch.fnmatchcase(path, pattern) or fnmatch.fnmatchcase(path.partition("/")[2], pattern)
