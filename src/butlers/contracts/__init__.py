"""Wire values, one file per schema.

Every envelope is strict, frozen and closed to unknown fields. `parse` names all wrong fields at once, without echoing
values. An unknown or newer `schema_version` is refused before any field is looked at, always with the same words:
a field of a version we do not speak cannot be checked.
"""
