"""What belongs to running programs and knows neither graphs nor passes."""
