"""Elastic training inside other frameworks' trainers."""
