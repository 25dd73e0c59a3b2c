"""Have the jars of a Kafka broker for the tests that need one.

No Python package has them. Maven gets them from where it is configured to look, by the coordinates below; each must
have the checksum of `tools/kafka_jars.sha256`. They go into trucker's cache folder, where the tests find them
(`trucker.testing.kafka_broker`); nothing is installed. Where there is no Maven, or no network, this says how to get it
and ends well: the tests that need a broker are then skipped, and say so.

python tools/get_kafka.py [--checksums]      with --checksums, write the checksums of what Maven has got now
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from trucker.testing.kafka_broker import VERSION, has_kafka, kafka_jars

COORDINATES = (("org.apache.kafka", "kafka_2.13", VERSION), ("org.apache.logging.log4j", "log4j-slf4j-impl", "2.25.4"))
PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
CHECKSUMS = Path(__file__).with_name("kafka_jars.sha256")
SECONDS = 600
HELP = """the Kafka broker is not to be had here, so the tests that need one are skipped. To run them, install Maven:
    apt-get install maven            (Debian, Ubuntu; as root)
    dnf install maven                (Fedora)
    brew install maven               (Homebrew)
Then run the tests again."""


class Missing(Exception):
    """It cannot be had by these means."""


def project() -> str:
    """What Maven is to resolve."""
    dependencies = "".join(
        f"<dependency><groupId>{group}</groupId><artifactId>{name}</artifactId><version>{version}</version></dependency>"
        for group, name, version in COORDINATES
    )
    return (
        "<project><modelVersion>4.0.0</modelVersion><groupId>trucker</groupId><artifactId>broker</artifactId>"
        f"<version>1</version><dependencies>{dependencies}</dependencies></project>"
    )


def copy_jars(folder: Path) -> None:
    """Have Maven copy them into the folder."""
    (folder / "pom.xml").write_text(project())
    command = ["mvn", "--quiet", "--batch-mode", PLUGIN, f"-DoutputDirectory={folder}"]
    try:
        subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=SECONDS, check=True)
    except FileNotFoundError as error:
        raise Missing("there is no mvn") from error
    except subprocess.TimeoutExpired as error:
        raise Missing("mvn took too long") from error
    except subprocess.CalledProcessError as error:
        raise Missing((error.stdout.strip().splitlines() or ["mvn failed"])[0]) from error


def checksums(folder: Path) -> str:
    """As sha256sum prints them."""
    jars = sorted(folder.glob("*.jar"))
    return "".join(f"{hashlib.sha256(jar.read_bytes()).hexdigest()}  {jar.name}\n" for jar in jars)


def fetch(target: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="trucker-kafka-", dir=target.parent) as temporary:
        new = Path(temporary)
        copy_jars(new)
        if checksums(new) != CHECKSUMS.read_text(encoding="utf-8"):
            raise Missing(f"the jars that mvn has got do not have the checksums of {CHECKSUMS.name}")
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir()
        for jar in new.glob("*.jar"):
            jar.chmod(0o644)
            jar.replace(target / jar.name)
        target.chmod(0o755)
        (target / "complete").touch()


def main() -> int:
    if "--checksums" in sys.argv[1:]:
        with tempfile.TemporaryDirectory() as temporary:
            copy_jars(Path(temporary))
            CHECKSUMS.write_text(checksums(Path(temporary)), encoding="utf-8")
        return 0
    if not has_kafka():
        try:
            fetch(kafka_jars())
        except (Missing, OSError) as error:
            print(f"{error}\n{HELP}")  # noqa: T201
            return 0
    print(f"kafka: {kafka_jars()}")  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
