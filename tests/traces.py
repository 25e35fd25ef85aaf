"""Counts how often a function is traced, by something that says nothing of what it computes: its log."""

import logging

LOGGER = logging.getLogger(__name__)


def note_trace():
    """For the body of the function."""
    LOGGER.debug("traced")


def traces_of(function):
    """Returns how many traces were noted while `function()` ran, and what it returned."""
    records = []
    handler = logging.Handler()
    handler.emit = records.append
    LOGGER.addHandler(handler)
    LOGGER.setLevel(logging.DEBUG)
    try:
        result = function()
    finally:
        LOGGER.setLevel(logging.NOTSET)
        LOGGER.removeHandler(handler)
    return len(records), result
