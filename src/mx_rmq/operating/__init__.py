"""Reading and operating a queue: inspection, topics, dead letters, the audit."""
