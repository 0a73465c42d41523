"""Values of queries → figures. Pure: no Streamlit, no clock, no reading."""
