"""Parts of the page of one incident. telling, stages, foretold and drawing are pure; deciding talks to Streamlit."""
