#!/usr/bin/env bash
# Moves the flight records that dead ranks of a run left in this host's memory to the run's folder: keep_flight.sh RUN/flight
# There they stand for good, newer by up to 5 s than what the ranks wrote themselves. src/trace/flight_log.h says how a record
# begins: 8 bytes, the start of the run, two halves for the ranks, and the process.
for record in /dev/shm/tandem-flight-*; do
  [[ -O $record && $record =~ -([0-9]+)-([0-9]{1,9})$ ]] || continue
  start=${BASH_REMATCH[1]}
  printf -v file '%s/rank-%04d' "$1" "$((10#${BASH_REMATCH[2]}))"
  process=$(od -An -td8 -j24 -N8 "$record" 2>/dev/null | tr -d ' ')
  [ -n "$process" ] || continue  # its run has removed it
  [ "$start" = "$(od -An -td8 -j8 -N8 "$file" 2>/dev/null | tr -d ' ')" ] || continue  # of another run
  if read -r pages _ 2>/dev/null <"/proc/$process/statm" && [ "$pages" != 0 ]; then continue; fi  # who dies has no memory
  [ -e "$record" ] || continue  # somebody else has moved it
  dd if="$record" of="$file" bs=1M conv=notrunc status=none && rm -f "$record"  # in place, which also a full disk allows
done
