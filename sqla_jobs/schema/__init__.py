"""What is stored, and every sentence that we say to the database."""
