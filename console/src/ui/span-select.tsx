import { SegmentedControl } from '@mantine/core';
import { useLingui } from '@lingui/react/macro';
import { useUrlState } from './url-state';

type Span = '1h' | '24h' | '7d';

const spans: Record<string, number> = {
  '1h': 3_600_000,
  '24h': 86_400_000,
  '7d': 7 * 86_400_000,
} satisfies Record<Span, number>;

/** The length of a time range, where another one than the offered ones means one hour. */
export const spanMsOf = (span: string) => spans[span] ?? 3_600_000;

/** A time range in the page's address, and its length; another one than the offered ones means the initial one. */
export function useSpan(initial: Span): { span: string; spanMs: number; setSpan: (span: string) => void } {
  const [span, setSpan] = useUrlState('range', initial);
  return { span, spanMs: spans[span] ?? spanMsOf(initial), setSpan };
}

export function SpanSelect({ value, onChange }: { value: string; onChange: (value: string) => void }) {
  const { t } = useLingui();
  return (
    <SegmentedControl
      size="xs"
      aria-label={t`Time range`}
      value={value}
      onChange={onChange}
      data={[
        { value: '1h', label: t`1 hour` },
        { value: '24h', label: t`24 hours` },
        { value: '7d', label: t`7 days` },
      ]}
    />
  );
}
