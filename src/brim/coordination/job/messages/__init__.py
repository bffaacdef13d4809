"""The words of a job's processes to each other as they train, as typed values. Pure.

They are here since the automata of this package take and return them: the wire and the decisions
share the same words. `brim.wire.messages` has them all, with the others.
"""
