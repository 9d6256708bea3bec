#!/usr/bin/env python3
"""Writes examples/data/sales.csv: a year's made-up orders of a made-up shop, always the same."""

import csv
import math
import random
from datetime import date, timedelta
from pathlib import Path

TARGET = Path(__file__).parent.parent / "examples" / "data" / "sales.csv"
ROWS = 6000
COLUMNS = ("order", "date", "region", "channel", "product", "units", "unit_price", "discount")
RETAIL_UNITS = (1, 1, 1, 2, 2, 3)

# Product: price, popularity, month in which it sells best, how much the season matters.
PRODUCTS = {
    "Espresso beans 1 kg": (24.90, 5.0, 12, 0.25),
    "Filter coffee 500 g": (12.50, 4.0, 1, 0.20),
    "Cold brew kit": (39.00, 1.6, 7, 0.85),
    "Hand grinder": (89.00, 1.2, 12, 0.55),
    "Moka pot": (34.50, 1.5, 11, 0.35),
    "Milk frother": (49.00, 1.1, 12, 0.50),
    "Travel mug": (19.90, 2.4, 6, 0.40),
    "Descaler": (8.90, 2.0, 3, 0.10),
}
REGIONS = {"North": 1.0, "South": 1.5, "East": 0.8, "West": 1.9, "Export": 0.6}
CHANNELS = {"web": 6, "shop": 3, "wholesale": 1}


def demand(product: str, month: int) -> float:
    _, popularity, best, swing = PRODUCTS[product]
    return popularity * (1 + swing * math.cos((month - best) / 12 * 2 * math.pi))


def order(random_: random.Random, number: int, day: date) -> list[str]:
    names = list(PRODUCTS)
    product = random_.choices(names, [demand(name, day.month) for name in names])[0]
    region = random_.choices(list(REGIONS), list(REGIONS.values()))[0]
    channel = random_.choices(list(CHANNELS), list(CHANNELS.values()))[0]
    units = random_.randint(12, 60) if channel == "wholesale" else random_.choice(RETAIL_UNITS)
    discount = 0.25 if channel == "wholesale" else random_.choice([0, 0, 0, 0.05, 0.1])
    # Real exports are never clean: a few rows have no units, or a price in another notation.
    units_text = "" if random_.random() < 0.003 else str(units)
    price_text = f"{PRODUCTS[product][0]:.2f}"
    if random_.random() < 0.002:
        price_text = price_text.replace(".", ",")
    row = [f"A{number:06}", day.isoformat(), region, channel, product]
    return [*row, units_text, price_text, f"{discount:.2f}"]


def main() -> None:
    random_ = random.Random(2024)  # not for secrets
    year = [date(2024, 1, 1) + timedelta(days=n) for n in range(366)]
    # More on weekends and towards the end of the year; a little growth all along.
    weights = [
        (1.3 if day.weekday() > 4 else 1.0) * (1 + 0.35 * n / 366) * (1.5 if day.month == 12 else 1)
        for n, day in enumerate(year)
    ]
    days = sorted(random_.choices(year, weights, k=ROWS))
    TARGET.parent.mkdir(exist_ok=True)
    with TARGET.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows(order(random_, 100_000 + n, day) for n, day in enumerate(days))


if __name__ == "__main__":
    main()
