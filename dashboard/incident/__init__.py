"""Parts of the page of one incident. summary, stages and incident_html are pure; decision_form draws with Streamlit."""
