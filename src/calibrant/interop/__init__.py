"""Where Calibrant meets other libraries; each module needs the one that it is named after, and loads it on import."""
