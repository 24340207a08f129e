"""What a step holds, computes and sends, by formula, for two large jobs on 8 to 512 devices.

The work of one device was measured (shares.json, by shares.py on an accelerator); what the devices
send is counted by formulas that tests/multidevice compares with compiled programs. Latency and
bandwidth of the network are assumptions, stated in the table's head: nobody lent us 512 devices.
Writes capacity.md beside this file.
"""

from __future__ import annotations

import json

from _common import HERE, table

BYTES = 4  # float32
LATENCY = 30e-6  # seconds for one small all-reduce between nodes
WITHIN, BETWEEN = 400e9, 50e9  # bytes a second and device, inside a node of 8 and between nodes


def held(latents: int, particles: float) -> float:
    """Bytes a device: x, grad_x, log p and A before and after a chunk, and a step's own copies."""
    return BYTES * particles * (8 * latents + 4)


def sent_for_particles(theta: int, latents: int, particles: float) -> tuple[int, float, float]:
    """All-reduces of a step, their bytes, and the bytes of a resampling (one passing each way)."""
    return 8, BYTES * (theta + 12), 2 * BYTES * particles * (2 * latents + 1)


def sent_for_groups(theta: int) -> tuple[int, float]:
    return 6, BYTES * (theta + 7)


def sent_for_data(latents: int, particles: float) -> tuple[int, float]:
    return 1, BYTES * particles * (latents + 1)


def all_reduce(count: int, size: float, devices: int, speed: float) -> float:
    """Seconds: a ring sends everything twice."""
    return count * LATENCY + 2 * size * (devices - 1) / devices / speed


def mixed_model(shares: list[dict]) -> list[dict]:
    """A million subjects, N = 1000, two latents and four theta, spread by groups."""
    rows = []
    for share in shares:
        devices, alone = share["devices"], share["ms a step"]
        count, size = sent_for_groups(4)
        together = alone + 1e3 * all_reduce(count, size, devices, BETWEEN)
        rows.append(
            {
                "devices": devices,
                "GB by formula": held(2, share["subjects a device"] * 1000) / 1e9,
                "GB of the program": share["GB"],
                "alone, ms (measured)": alone,
                "sent, bytes": size,
                "together, ms": together,
                "efficiency": shares[0]["ms a step"] * shares[0]["devices"] / devices / together,
            }
        )
    return rows


def network(shares: list[dict]) -> list[dict]:
    """1e8 latents, 1000 images, 64 particles: by particles, beyond 64 devices also by data."""
    latents, total = 99_250_000, 64
    each = shares[0]["ms a step"] / shares[0]["particles a device"]
    rows = []
    for devices in (8, 16, 32, 64, 512):
        over_data = max(1, devices // total)
        particles = total * over_data // devices
        alone = each * particles / over_data
        count, size, passed = sent_for_particles(2, latents, particles)
        cost = all_reduce(count, size, devices, BETWEEN)
        if over_data > 1:
            of_data = sent_for_data(latents, particles)
            size += of_data[1]
            cost += all_reduce(*of_data, over_data, WITHIN)
        together = alone + 1e3 * cost
        rows.append(
            {
                "devices": devices,
                "mesh": f"{total if over_data > 1 else devices} x {over_data}",
                "GB by formula": held(latents, particles) / 1e9,
                "alone, ms": alone,
                "sent, MB": size / 1e6,
                "a resampling, MB": passed / 1e6,
                "together, ms": together,
                "efficiency": each * total / devices / together,
            }
        )
    return rows


def main() -> None:
    shares = json.loads((HERE / "shares.json").read_text())
    head = (
        f"`python benchmarks/capacity.py`, from shares.json ({shares['machine']['device']}). "
        f"Assumed: {1e6 * LATENCY:.0f} us for a small all-reduce, {BETWEEN / 1e9:.0f} GB/s "
        f"between nodes, {WITHIN / 1e9:.0f} GB/s inside a node of 8."
    )
    parts = [
        head,
        "A mixed model of a million subjects, N = 1000, spread by groups:",
        table(mixed_model(shares["mixed"])),
        "A network of 1e8 latents, 1000 images, N = 64, on a mesh of particles x data:",
        table(network(shares["network"])),
    ]
    page = "\n\n".join(parts) + "\n"
    print(page)
    (HERE / "capacity.md").write_text(page)


if __name__ == "__main__":
    main()
