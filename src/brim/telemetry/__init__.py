"""What a run tells its people: events, progress, reports."""
