"""The script that Streamlit is given."""
