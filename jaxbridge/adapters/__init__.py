"""Floor 2: one file per module library, each making a PureModel of that library's modules."""
