"""The application: whatever has a console, a run folder or a page."""
