"""A page that shows runs while they train."""
