"""Plain data to text and pictures. Nothing here measures, decides or exits."""
