/* Heat maps: enlarge, paint, and find the box. Matches the server's arithmetic. */

const RAMP = [[20, 12, 60], [88, 22, 122], [166, 38, 108], [224, 82, 60], [250, 156, 30], [253, 236, 140]];

/** Bilinear, with pixel centres at halves, as on the server. */
export function resizeMap(rows, side) {
  const positions = (length) => Array.from({ length: side }, (_, i) => {
    const place = Math.max(0, ((i + 0.5) * length) / side - 0.5);
    const low = Math.floor(place);
    return [low, Math.min(low + 1, length - 1), place - low];
  });
  const columns = positions(rows[0].length);
  const map = new Float32Array(side * side);
  positions(rows.length).forEach(([top, bottom, down], y) => {
    columns.forEach(([left, right, across], x) => {
      const upper = rows[top][left] * (1 - across) + rows[top][right] * across;
      const lower = rows[bottom][left] * (1 - across) + rows[bottom][right] * across;
      map[y * side + x] = upper * (1 - down) + lower * down;
    });
  });
  return map;
}

/** Hotter is more opaque, so that the photo stays visible where the map is cold. */
export function paintMap(canvas, map, side) {
  canvas.width = canvas.height = side;
  const pixels = new ImageData(side, side);
  map.forEach((heat, i) => {
    const place = Math.min(heat * (RAMP.length - 1), RAMP.length - 1.001);
    const low = Math.floor(place);
    for (let c = 0; c < 3; c++) pixels.data[4 * i + c] = RAMP[low][c] + (RAMP[low + 1][c] - RAMP[low][c]) * (place - low);
    pixels.data[4 * i + 3] = 255 * heat;
  });
  canvas.getContext("2d").putImageData(pixels, 0, 0);
}

/** Box (x0, y0, x1, y1) of the largest 8-connected region above the threshold; the whole square if there is none. */
export function largestRegion(map, side, threshold) {
  const open = Uint8Array.from(map, (heat) => heat > threshold);
  let best = [0, 0, side, side], most = 0;
  for (let first = 0; first < open.length; first++) {
    if (!open[first]) continue;
    const box = [side, side, 0, 0], todo = [first];
    let area = 0;
    open[first] = 0;
    while (todo.length) {
      const place = todo.pop(), x = place % side, y = (place - x) / side;
      area++;
      box[0] = Math.min(box[0], x); box[1] = Math.min(box[1], y);
      box[2] = Math.max(box[2], x + 1); box[3] = Math.max(box[3], y + 1);
      for (let v = Math.max(0, y - 1); v <= Math.min(side - 1, y + 1); v++) {
        for (let u = Math.max(0, x - 1); u <= Math.min(side - 1, x + 1); u++) {
          if (open[v * side + u]) { open[v * side + u] = 0; todo.push(v * side + u); }
        }
      }
    }
    if (area > most) [best, most] = [box, area];
  }
  return best;
}
