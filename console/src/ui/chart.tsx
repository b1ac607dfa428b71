import { useComputedColorScheme } from '@mantine/core';
import { useLingui } from '@lingui/react/macro';
import { useMergedRef, useResizeObserver } from '@mantine/hooks';
import { useEffect, useRef } from 'react';
import uPlot from 'uplot';
import 'uplot/dist/uPlot.min.css';
import { formatBytes, formatCompact, formatTick } from '../format';

export interface Series {
  label: string;
  /** One value per time; `null` is a gap. */
  values: (number | null)[];
  /** 1 to 6: the colour. */
  colour?: number;
  /** For values that are shown for comparison. */
  isDashed?: boolean;
}

/** Distances of ticks for bytes, which are shown in units of 1024. */
const binarySteps = Array.from({ length: 50 }, (_, power) => 2 ** power);

interface ChartProps {
  /** Milliseconds since 1970, ascending. */
  times: number[];
  series: Series[];
  height?: number;
  format?: (value: number) => string;
  /** Values on the axis, with the distance of its ticks; default: `format`. */
  tick?: (value: number, step: number) => string;
  /** The largest value that the axis shows at least. */
  minTop?: number;
  /** The time range to show, in milliseconds; default: that of the values. */
  spanMs?: number;
  /** Charts with the same key move their cursors together. */
  syncKey?: string;
  /** The time axis, in milliseconds; default: the range of the values. */
  range?: [number, number];
  /** Whether the value axis begins with the values instead of zero. */
  isAutoScaled?: boolean;
  /** Bars instead of lines: the length of the interval that each bar stands for. */
  barMs?: number;
  /** Drag across the chart to choose a time range. */
  onZoom?: (fromMs: number, toMs: number) => void;
  /** What the chart shows, for those who cannot see it. */
  label: string;
}

/** Lines over time. */
export function Chart({
  times,
  series,
  height = 160,
  format = formatCompact,
  tick = format === formatCompact ? formatTick : format,
  minTop = 1,
  spanMs,
  syncKey,
  range,
  isAutoScaled = false,
  barMs,
  onZoom,
  label,
}: ChartProps) {
  const scheme = useComputedColorScheme('light');
  const [observe, size] = useResizeObserver<HTMLDivElement>();
  const box = useRef<HTMLDivElement>(null);
  const ref = useMergedRef(box, observe);
  const plot = useRef<uPlot | null>(null);
  const width = Math.floor(size.width);
  const shape = series.map((each) => `${each.label}:${each.colour ?? ''}:${each.isDashed}`).join('|');
  const latest = useRef({ times, series, format, tick, range, onZoom });
  latest.current = { times, series, format, tick, range, onZoom };
  const { t } = useLingui();
  const timeText = t`Time`;
  const canZoom = onZoom !== undefined;

  useEffect(() => {
    const target = box.current;
    if (!target || width === 0) return;
    const styles = getComputedStyle(document.documentElement);
    const colour = (name: string) => styles.getPropertyValue(name).trim();
    const axis: uPlot.Axis = {
      stroke: colour('--tg-dimmed'),
      grid: { stroke: colour('--tg-border'), width: 1 },
      ticks: { show: false },
      font: '11px system-ui, sans-serif',
    };
    const { series: current } = latest.current;
    plot.current = new uPlot(
      {
        width,
        height,
        ms: 1,
        padding: [8, 8, 0, 0],
        cursor: {
          points: { size: 6 },
          drag: { x: canZoom, y: false, setScale: false },
          ...(syncKey ? { sync: { key: syncKey } } : {}),
        },
        legend: { show: current.length > 1 || syncKey !== undefined, live: true },
        axes: [
          { ...axis, size: 28, space: 70, values: (_, splits) => splits.map((ms) => timeLabel(ms, splits)) },
          {
            ...axis,
            size: 52,
            ...(latest.current.format === formatBytes ? { incrs: binarySteps } : {}),
            values: (_, splits) => {
              const step = (splits[1] ?? 0) - (splits[0] ?? 0);
              return splits.map((value) => latest.current.tick(value, step));
            },
          },
        ],
        scales: {
          x: {
            range: (_, min, max) => latest.current.range ?? (spanMs === undefined ? [min, max] : [max - spanMs, max]),
          },
          y: {
            range: (_, min, max) =>
              isAutoScaled ? padded(min, max) : [Math.min(0, min ?? 0), Math.max(minTop, (max ?? 0) * 1.1)],
          },
        },
        hooks: {
          ready: [(chart) => chart.setLegend({ idx: latest.current.times.length - 1 }, false)],
          setSelect: [
            (chart) => {
              const { left, width: selected } = chart.select;
              if (selected > 4)
                latest.current.onZoom?.(chart.posToVal(left, 'x'), chart.posToVal(left + selected, 'x'));
              chart.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
            },
          ],
        },
        series: [
          {
            label: timeText,
            value: (_, ms) => (ms == null ? '–' : new Date(ms).toLocaleTimeString(undefined, { hourCycle: 'h23' })),
          },
          ...current.map((each, index) => ({
            label: each.label,
            stroke: colour(`--tg-chart-${each.colour ?? (index % 6) + 1}`),
            width: 1.5,
            ...(each.isDashed ? { dash: [5, 4] } : {}),
            spanGaps: isAutoScaled,
            ...(barMs === undefined ? {} : { paths: barPaths(barMs, index, current.length) }),
            fill:
              barMs !== undefined
                ? colour(`--tg-chart-${each.colour ?? (index % 6) + 1}`)
                : current.length === 1 && !isAutoScaled
                  ? `${colour(`--tg-chart-${each.colour ?? 1}`)}22`
                  : undefined,
            points: { show: false },
            value: (_: uPlot, value: number | null) => (value == null ? '–' : latest.current.format(value)),
          })),
        ],
      },
      [latest.current.times, ...current.map((each) => each.values)] as uPlot.AlignedData,
      target,
    );
    return () => {
      plot.current?.destroy();
      plot.current = null;
    };
  }, [barMs, box, canZoom, height, isAutoScaled, minTop, scheme, shape, spanMs, syncKey, timeText, width]);

  useEffect(() => {
    const chart = plot.current;
    if (!chart) return;
    chart.setData([times, ...series.map((each) => each.values)] as uPlot.AlignedData);
    // Without a cursor the legend shows the last values.
    if (chart.cursor.idx == null && times.length > 0) chart.setLegend({ idx: times.length - 1 }, false);
  }, [times, series, range?.[0], range?.[1]]);

  return <div ref={ref} className="chart" style={{ minHeight: height }} role="img" aria-label={label} />;
}

/** The part of an interval that its bars fill. */
const barShare = 0.8;

/** Bars of several series stand side by side within their interval. */
function barPaths(intervalMs: number, index: number, count: number): uPlot.Series.PathBuilder {
  const widthMs = (intervalMs * barShare) / count;
  const shiftMs = (intervalMs * (1 - barShare)) / 2 + index * widthMs;
  const build = uPlot.paths.bars?.({
    disp: {
      x0: { unit: 1, values: (chart) => Array.from(chart.data[0], (ms) => ms + shiftMs) },
      size: { unit: 1, values: () => [widthMs] },
    },
  });
  if (!build) throw new Error('the library was built without bars');
  return build;
}

/** A range around the values with some space, also where all are the same. */
function padded(min: number | null, max: number | null): [number, number] {
  if (min == null || max == null) return [0, 1];
  const space = (max - min) * 0.08 || Math.abs(max) * 0.1 || 1;
  return [min - space, max + space];
}

const dayMs = 86_400_000;

/** A time on the axis: with seconds where ticks are close, with the day where they are far apart. */
function timeLabel(ms: number, splits: number[]): string {
  const step = (splits[1] ?? ms) - (splits[0] ?? ms);
  const format: Intl.DateTimeFormatOptions =
    step >= dayMs
      ? { month: '2-digit', day: '2-digit' }
      : { hour: '2-digit', minute: '2-digit', ...(step < 60_000 ? { second: '2-digit' } : {}), hourCycle: 'h23' };
  return new Intl.DateTimeFormat(document.documentElement.lang, format).format(ms);
}
