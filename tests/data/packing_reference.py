"""A planner of windows that is slow and says no more than the rules of src/data/packing.h do."""

POOL = 1024


def planned_pool(documents, room, cuts):
    """The windows of (length, start) pairs. A piece in a window has the same form."""
    windows, pieces = [], []
    for length, start in documents:
        while length > room:
            if cuts:
                windows.append([(room, start)])
            drop = room if cuts else 1
            length, start = length - drop, start + drop
        pieces.append((length, start))
    while pieces:
        window, left = [], room
        while left and pieces:
            fitting = [piece for piece in pieces if piece[0] <= left]
            if not fitting and not cuts:
                break
            piece = max(fitting or pieces)
            pieces.remove(piece)
            if not fitting:
                pieces.append((piece[0] - left, piece[1] + left))
                piece = (left, piece[1])
            window.append(piece)
            left -= piece[0]
        windows.append(window)
    return windows
