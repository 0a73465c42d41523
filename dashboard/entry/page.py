"""The script behind the pages. It stands in a folder of its own: beside a folder `pages` Streamlit takes those files for scripts until it
has seen our navigation once, so that in a fresh process the link of an alert would show an empty page.
"""

from dashboard.app import main

main()
