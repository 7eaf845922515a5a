"""Gemini's formats: generateContent and Interactions."""
