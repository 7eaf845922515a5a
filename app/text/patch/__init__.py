"""The V4A patch format of apply_patch."""
