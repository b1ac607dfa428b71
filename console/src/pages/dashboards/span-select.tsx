import { SegmentedControl } from '@mantine/core';
import { useLingui } from '@lingui/react/macro';

export const spans: Record<string, number> = { '1h': 3_600_000, '24h': 86_400_000, '7d': 7 * 86_400_000 };

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
