import { SegmentedControl } from '@mantine/core';
import { useLingui } from '@lingui/react/macro';
import { useUrlState } from './url-state';

const hourMs = 3_600_000;
const spansMs = {
  '1h': hourMs,
  '6h': 6 * hourMs,
  '24h': 24 * hourMs,
  '7d': 7 * 24 * hourMs,
  '30d': 30 * 24 * hourMs,
};

export type Span = keyof typeof spansMs;

const usual: readonly Span[] = ['1h', '24h', '7d'];

/** The length of a time range; another one than the offered ones means the initial one. */
export function spanMsOf(span: string, initial: Span = '1h', offered: readonly Span[] = usual): number {
  return spansMs[offered.find((each) => each === span) ?? initial];
}

/** A time range in the page's address, and its length. */
export function useSpan(
  initial: Span,
  offered?: readonly Span[],
): { span: string; spanMs: number; setSpan: (span: string) => void } {
  const [span, setSpan] = useUrlState('range', initial);
  return { span, spanMs: spanMsOf(span, initial, offered), setSpan };
}

interface SpanSelectProps {
  value: string;
  onChange: (value: string) => void;
  offered?: readonly Span[];
  /** Choices of the page beyond the time until now. */
  others?: { value: string; label: string }[];
}

export function SpanSelect({ value, onChange, offered = usual, others = [] }: SpanSelectProps) {
  const { t } = useLingui();
  const labels: Record<Span, string> = {
    '1h': t`1 hour`,
    '6h': t`6 hours`,
    '24h': t`24 hours`,
    '7d': t`7 days`,
    '30d': t`30 days`,
  };
  return (
    <SegmentedControl
      size="xs"
      aria-label={t`Time range`}
      value={value}
      onChange={onChange}
      data={[...offered.map((span) => ({ value: span, label: labels[span] })), ...others]}
    />
  );
}
