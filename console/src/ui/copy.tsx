import { ActionIcon, CopyButton, Tooltip } from '@mantine/core';
import { useLingui } from '@lingui/react/macro';
import { IconCheck, IconCopy } from '@tabler/icons-react';

export function Copy({ value, label }: { value: string; label?: string }) {
  const { t } = useLingui();
  return (
    <CopyButton value={value} timeout={1500}>
      {({ copied, copy }) => (
        <Tooltip label={copied ? t`Copied` : (label ?? t`Copy`)}>
          <ActionIcon onClick={copy} aria-label={label ?? t`Copy`} size="sm" color={copied ? 'tide' : 'gray'}>
            {copied ? <IconCheck size={14} /> : <IconCopy size={14} />}
          </ActionIcon>
        </Tooltip>
      )}
    </CopyButton>
  );
}

/** Text to copy, in one line or several. */
export function CopyText({ text }: { text: string }) {
  return (
    <div className="copy-text">
      <pre tabIndex={0}>{text}</pre>
      <Copy value={text} />
    </div>
  );
}
