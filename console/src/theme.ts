import { t } from '@lingui/core/macro';
import { createTheme, type CSSVariablesResolver, type MantineColorsTuple } from '@mantine/core';

/** The one accent colour: deep blue-green. */
const tide: MantineColorsTuple = [
  '#e8f6f6',
  '#d3eaea',
  '#a5d4d5',
  '#74bdbf',
  '#4ea9ac',
  '#369da0',
  '#26979a',
  '#128488',
  '#00757a',
  '#00656a',
];

/** Read when a drawer is drawn, in the language of the page. */
const closeButtonProps = {
  get 'aria-label'() {
    return t`Close`;
  },
};

export const theme = createTheme({
  primaryColor: 'tide',
  primaryShade: 8,
  colors: { tide },
  fontFamily: 'system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "Noto Sans SC", sans-serif',
  fontFamilyMonospace: 'ui-monospace, "SF Mono", "Cascadia Mono", "DejaVu Sans Mono", Menlo, Consolas, monospace',
  fontSizes: { xs: '0.75rem', sm: '0.8125rem', md: '0.875rem', lg: '1rem', xl: '1.125rem' },
  headings: {
    fontWeight: '600',
    sizes: { h1: { fontSize: '1.25rem' }, h2: { fontSize: '1rem' }, h3: { fontSize: '0.875rem' } },
  },
  defaultRadius: 'sm',
  cursorType: 'pointer',
  autoContrast: true,
  components: {
    Button: { defaultProps: { size: 'xs' } },
    ActionIcon: { defaultProps: { variant: 'subtle', color: 'gray' } },
    TextInput: { defaultProps: { size: 'sm' } },
    Select: { defaultProps: { size: 'sm' } },
    Tooltip: { defaultProps: { openDelay: 300, withArrow: true } },
    Notification: { defaultProps: { closeButtonProps } },
    Drawer: { defaultProps: { closeButtonProps } },
    // Its element would be a second banner of the page for screen readers.
    DrawerHeader: { defaultProps: { role: 'presentation' } },
    ModalHeader: { defaultProps: { role: 'presentation' } },
    Modal: { defaultProps: { centered: true, closeButtonProps } },
    Menu: { defaultProps: { shadow: 'md', position: 'bottom-end' } },
  },
});

/** Colours of states and charts, readable (WCAG AA) on the surfaces of both themes. */
export const cssVariables: CSSVariablesResolver = () => ({
  variables: {},
  light: {
    '--tg-page': '#f6f7f8',
    '--tg-surface': '#ffffff',
    '--tg-border': '#dfe3e6',
    '--tg-dimmed': '#5b666e',
    '--tg-good': '#1a7f43',
    '--tg-warning': '#946000',
    '--tg-critical': '#c0322b',
    '--tg-unknown': '#5b666e',
    '--tg-chart-1': '#00757a',
    '--tg-chart-2': '#7048c6',
    '--tg-chart-3': '#b35900',
    '--tg-chart-4': '#2764b8',
    '--tg-chart-5': '#a83275',
    '--tg-chart-6': '#4f7a1c',
    '--mantine-color-dimmed': '#5b666e',
    '--mantine-color-placeholder': '#5b666e',
    '--mantine-color-error': '#c0322b',
  },
  dark: {
    '--tg-page': '#121517',
    '--tg-surface': '#1a1e21',
    '--tg-border': '#2e3438',
    '--tg-dimmed': '#9aa5ad',
    '--tg-good': '#4cc27d',
    '--tg-warning': '#e0a83a',
    '--tg-critical': '#f2786f',
    '--tg-unknown': '#9aa5ad',
    '--tg-chart-1': '#3fb5b9',
    '--tg-chart-2': '#a98bf0',
    '--tg-chart-3': '#e79a4a',
    '--tg-chart-4': '#6fa4ee',
    '--tg-chart-5': '#e27db5',
    '--tg-chart-6': '#98c15c',
    '--mantine-color-body': '#121517',
    '--mantine-color-dimmed': '#9aa5ad',
    '--mantine-color-placeholder': '#9aa5ad',
    '--mantine-color-error': '#f2786f',
  },
});
