"""Answers for people and for programs: screens of text, JSON, charts. A report takes a finished answer and computes nothing."""
